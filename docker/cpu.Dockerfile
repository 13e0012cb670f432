# bertwright for processors, from the wheel: docker build -f docker/cpu.Dockerfile -t bertwright dist
FROM python:3.11-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN ["python", "-m", "venv", "/opt/bertwright"]
COPY bertwright-*.whl /tmp/wheels/
RUN /opt/bertwright/bin/pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
        torch==2.13.0+cpu "$(echo /tmp/wheels/*.whl)[serve,tasks]"

FROM python:3.11-slim-bookworm
RUN useradd --create-home --uid 1000 bertwright && install --directory --owner bertwright /work
COPY --from=build /opt/bertwright /opt/bertwright
ENV PATH=/opt/bertwright/bin:$PATH PYTHONUNBUFFERED=1
USER 1000
WORKDIR /work
EXPOSE 8000
# For `serve` alone: start other commands with `docker run --no-healthcheck`.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["bertwright"]
CMD ["serve", "--model", "small-wiki", "--host", "0.0.0.0"]
