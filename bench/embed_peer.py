"""The other side of bench/embed.py, in an environment with sentence-transformers: one JSON line per round.

    python bench/embed_peer.py FOLDER TEXTS THREADS

Reads a batch size from standard input for each round; answers with seconds, and first with the embeddings.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main() -> None:
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer

    folder, texts, threads = sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), int(sys.argv[3])
    torch.set_num_threads(threads)
    model = SentenceTransformer(folder, device="cpu")
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    embeddings = model.encode(texts, show_progress_bar=False).tolist()
    print(json.dumps({"versions": versions, "embeddings": embeddings}), flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        model.encode(texts, batch_size=int(line), show_progress_bar=False)
        print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)


if __name__ == "__main__":
    main()
