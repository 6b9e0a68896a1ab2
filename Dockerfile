# syntax=docker/dockerfile:1
# CPU:  docker build -t halfstep .
# GPUs: docker build -t halfstep --build-arg TORCH=cuda .
FROM python:3.12-slim-trixie AS base
ENV PATH=/opt/halfstep/bin:$PATH

# The dependencies, which change seldom and weigh gigabytes: this stage needs no source, so an edit leaves it in the cache.
FROM base AS dependencies
# cpu: torch without CUDA libraries; cuda: the wheels of PyPI
ARG TORCH=cpu
WORKDIR /build
RUN python -m venv /opt/halfstep
COPY pyproject.toml constraints.txt ./
# constraints.txt pins torch for both: torch==X takes X+cpu too, and pip prefers it, as the higher version, where both indexes answer.
RUN --mount=type=cache,target=/root/.cache/pip \
    case "$TORCH" in \
        cpu) set -- --extra-index-url https://download.pytorch.org/whl/cpu ;; \
        cuda) set -- ;; \
        *) echo "TORCH=$TORCH is not an option; use cpu or cuda" >&2; exit 2 ;; \
    esac \
    && python -c "import tomllib; t = tomllib.load(open('pyproject.toml', 'rb')); \
        print(*t['build-system']['requires'], *t['project']['dependencies'], sep='\n')" > requirements.txt \
    && pip install --disable-pip-version-check -c constraints.txt "$@" -r requirements.txt

FROM base
LABEL org.opencontainers.image.title="Halfstep" \
      org.opencontainers.image.licenses="Apache-2.0"
# Process 1 in place of the launcher: a process 1 is deaf to SIGTERM until it has a handler of its own, here in its first second.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/*
# Runs, the MLflow store and what libraries download stay in the user's home, which is the volume.
RUN useradd --create-home --home-dir /workspace --uid 1000 halfstep
COPY --from=dependencies /opt/halfstep /opt/halfstep
WORKDIR /app
COPY . ./
# Editable, because conf/ is found beside src/. The build tool is among the dependencies: this asks no index.
RUN pip install --disable-pip-version-check --no-cache-dir --no-deps --no-build-isolation -e . \
    && ln -s /workspace/datasets datasets
# HOME and USER are for any --user too, who need not have an entry in /etc/passwd.
ENV HOME=/workspace \
    USER=halfstep \
    MLFLOW_TRACKING_URI=sqlite:////workspace/mlflow.db
USER halfstep
WORKDIR /workspace
RUN mkdir datasets
VOLUME /workspace
ENTRYPOINT ["tini", "--", "python", "-m", "src.train"]
