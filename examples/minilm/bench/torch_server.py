"""Embeddings over HTTP by PyTorch, with the requests and the batching of `minilm serve`: what that is compared with.

    torch_server.py MODEL_FOLDER BATCH WAIT_MS

Listens at a free port, and prints "listening at http://ADDRESS". Texts that wait are computed together: up to BATCH of them, or what has come
WAIT_MS after the first.
"""

import asyncio
import concurrent.futures
import json
import os
import pathlib
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import tokenizers
import torch
import transformers
from aiohttp import web

folder, most, wait = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) / 1e3

tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
longest = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
tokenizer.enable_truncation(longest)
tokenizer.enable_padding()
# The file has weights that this model does not use, as always.
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
model = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False, dtype=torch.float32).eval()


@torch.inference_mode()
def compute(texts):
    encoded = tokenizer.encode_batch(texts)
    ids = torch.tensor([text.ids for text in encoded])
    mask = torch.tensor([text.attention_mask for text in encoded])
    vectors = model(input_ids=ids, attention_mask=mask).last_hidden_state
    inside = mask.unsqueeze(2).to(vectors.dtype)
    means = (vectors * inside).sum(1) / inside.sum(1)
    return torch.nn.functional.normalize(means, dim=1).tolist()


async def batches(queue):
    """Computes what waits, on a thread of its own, for ever."""
    loop, thread = asyncio.get_running_loop(), concurrent.futures.ThreadPoolExecutor(1)
    while True:
        batch = [await queue.get()]
        end = batch[0][2] + wait
        while len(batch) < most:
            try:
                batch.append(queue.get_nowait())
            except asyncio.QueueEmpty:
                try:
                    batch.append(await asyncio.wait_for(queue.get(), max(end - time.monotonic(), 0)))
                except TimeoutError:
                    break
        rows = await loop.run_in_executor(thread, compute, [text for text, _, _ in batch])
        for (_, answer, _), row in zip(batch, rows):
            if not answer.done():
                answer.set_result(row)


async def main():
    queue = asyncio.Queue()
    worker = asyncio.create_task(batches(queue))

    async def embed(request):
        texts = (await request.json())["texts"]
        answers = [asyncio.get_running_loop().create_future() for _ in texts]
        for text, answer in zip(texts, answers):
            queue.put_nowait((text, answer, time.monotonic()))
        return web.json_response({"embeddings": await asyncio.gather(*answers)})

    application = web.Application()
    application.router.add_post("/embed", embed)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0]
    print(f"listening at http://{host}:{port}", flush=True)
    await worker


asyncio.run(main())
