# Images of atropos-rl, on CPUs. docs/cluster.md has the one with CUDA and vLLM.
#
#   docker build -t atropos .                             rollout API and environments
#   docker build -t atropos-trainer --target trainer .    the same, trainer and local server
#
# compose.yaml runs all four.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim AS base
ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
# A new volume takes owner and mode of the folder that it is mounted on.
RUN useradd --create-home --uid 10001 atropos \
    && install --directory --owner=atropos --mode=0700 /data
WORKDIR /srv/atropos

# The build tools stay in this stage.
FROM base AS wheel
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY docs/environments.md docs/environments.md
COPY environments environments
COPY example_trainer example_trainer
COPY atroposlib atroposlib
RUN pip wheel --no-deps --wheel-dir dist .

FROM base AS trainer
# https://download.pytorch.org/whl/cu128 for GPUs
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY --from=wheel /srv/atropos/constraints.txt /srv/atropos/dist/*.whl ./
RUN wheel="$(echo atropos_rl-*.whl)" \
    && pip install --extra-index-url "${TORCH_INDEX}" --constraint constraints.txt \
    "${wheel}[train,inference,lora,math,postgres]"
USER 10001
CMD ["atropos", "--help"]

# The last stage is what `docker build` makes without --target.
FROM base AS environments
COPY --from=wheel /srv/atropos/constraints.txt /srv/atropos/dist/*.whl ./
RUN wheel="$(echo atropos_rl-*.whl)" \
    && pip install --constraint constraints.txt "${wheel}[math,postgres]"
USER 10001
CMD ["atropos", "--help"]
