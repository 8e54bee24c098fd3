# qkv on a CPU, with a PyTorch that brings no CUDA:
#   docker build -t qkv .
#   docker run --rm -v "$PWD:/work" qkv train my.txt --minutes 3
FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -c /src/constraints.txt '/src[study]'
WORKDIR /work
ENTRYPOINT ["qkv"]
