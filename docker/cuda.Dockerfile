# bertwright for NVIDIA GPUs, from the wheel: docker build -f docker/cuda.Dockerfile -t bertwright:cuda dist
# The wheels of PyTorch have the CUDA libraries; the driver is the host's (docker run --gpus all).
FROM python:3.11-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN ["python", "-m", "venv", "/opt/bertwright"]
COPY bertwright-*.whl /tmp/wheels/
RUN /opt/bertwright/bin/pip install --no-cache-dir torch==2.13.0 "$(echo /tmp/wheels/*.whl)[serve,tasks]"

FROM python:3.11-slim-bookworm
RUN useradd --create-home --uid 1000 bertwright && install --directory --owner bertwright /work
COPY --from=build /opt/bertwright /opt/bertwright
ENV PATH=/opt/bertwright/bin:$PATH PYTHONUNBUFFERED=1 NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000
WORKDIR /work
EXPOSE 8000
# For `serve` alone: start other commands with `docker run --no-healthcheck`.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["bertwright"]
CMD ["serve", "--model", "small-wiki", "--host", "0.0.0.0"]
