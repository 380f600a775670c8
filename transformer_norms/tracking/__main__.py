"""python -m transformer_norms.tracking sync FOLDER      run folders in Weights & Biases"""

import sys

from transformer_norms.tracking.mirror import main

if __name__ == "__main__":
    sys.exit(main())
