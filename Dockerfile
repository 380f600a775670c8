# docker build -t transformer-norms .                                      for a CPU
# docker build -t transformer-norms --build-arg BASE=nvidia/cuda:13.0.1-base-ubuntu24.04 .      a GPU
# docker run -v "$PWD":/studies transformer-norms [transformer-norms train norm=layernorm]
ARG BASE=python:3.13-slim
FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && \
    { command -v pip || apt-get install -y --no-install-recommends python3-dev python3-venv; } && \
    rm -rf /var/lib/apt/lists/*
# On a CPU, this is PyTorch's index of CPU wheels, which saves some gigabytes.
ARG PIP_EXTRA_INDEX_URL
COPY pyproject.toml constraints.txt README.md LICENSE /source/
COPY configs /source/configs
COPY transformer_norms /source/transformer_norms
RUN python3 -m venv /venv && /venv/bin/pip install --no-cache-dir -c /source/constraints.txt "/source[report]"
ENV PATH=/venv/bin:$PATH
WORKDIR /studies
CMD ["transformer-norms", "train", "sweep=quick"]
