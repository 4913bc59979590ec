"""A network layer by layer, its weights streamed from pinned memory through two buffers. Sizes: n, rows, layers."""

from turns import serve, sizes, torch_or_exit

torch = torch_or_exit()
n, rows, layers = sizes()
BUFFERS = 2

hosts = [torch.full((n, n), 1.0 / n).pin_memory() for _ in range(layers)]
weights = [torch.empty(n, n, device="cuda") for _ in range(BUFFERS)]
x = [torch.ones(rows, n, device="cuda") for _ in range(2)]
up, compute = torch.cuda.Stream(), torch.cuda.Stream()
loaded, used = ([torch.cuda.Event() for _ in range(BUFFERS)] for _ in range(2))


def work():
    for layer in range(layers):
        b = layer % BUFFERS
        with torch.cuda.stream(up):
            if layer >= BUFFERS:
                up.wait_event(used[b])
            weights[b].copy_(hosts[layer], non_blocking=True)
            loaded[b].record(up)
        with torch.cuda.stream(compute):
            compute.wait_event(loaded[b])
            torch.matmul(x[layer % 2], weights[b], out=x[1 - layer % 2])
            used[b].record(compute)


serve(torch, {"run": work})
