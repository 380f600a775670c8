"""Every placement, and pre-norm with every norm, learns one batch by heart."""

import pytest
from combinations import combined
from trainers import trainer_from

from transformer_norms.names import options

STEPS, VOCAB = 300, 11
SIZES = ["model=nano", "model.width=32", "model.heads=2", "model.context=8", "trainer.clip=1"]
SIZES += ["trainer.batch_size=2", "schedule.warmup=20", f"trainer.steps={STEPS}"]
SIZES += ["trainer.probe_every=0"]
USUAL, RATES = 1e-2, {"l2norm": 3e-2, "ngpt": 3e-2}  # streams of length 1 make small logits
# With a separate head DyT saturates before its attention tells two contexts of a token apart.
TYPED = {"dyt": ["architecture.tied=true"]}

EVERY = [(placement, "rmsnorm") for placement in options("placement")]
EVERY += [("pre", norm) for norm in options("norm") if norm != "rmsnorm"]
SAMPLE = [("post", "rmsnorm"), ("sandwich", "rmsnorm"), ("ngpt", "rmsnorm"), ("pre", "dyt")]


@pytest.mark.goal("A5")
@pytest.mark.parametrize(
    ("placement", "norm"),
    [pytest.param(*pair, marks=[] if pair in SAMPLE else [pytest.mark.nightly]) for pair in EVERY],
)
def test_one_batch_is_learned_by_heart(placement, norm):
    rate = RATES.get(placement, RATES.get(norm, USUAL))
    typed = [*SIZES, f"optimizer.lr={rate}", *TYPED.get(norm, [])]
    trainer = trainer_from(combined(*typed, placement=placement, norm=norm), vocabulary=VOCAB)
    while trainer.step < STEPS and not trainer.last_loss < 0.05:
        assert trainer.train_step() is None
    assert trainer.last_loss < 0.05
