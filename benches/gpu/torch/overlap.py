"""Batches through a copy to the device, a chain of products and a copy back, on three streams with events by hand.

Sizes: n, products, batches, host buffers.
"""

from turns import serve, sizes, torch_or_exit

torch = torch_or_exit()
n, products, batches, hosts = sizes()
BUFFERS = 3

inputs = [torch.ones(n, n).pin_memory() for _ in range(hosts)]
outputs = [torch.empty(n, n).pin_memory() for _ in range(hosts)]
weights = torch.full((n, n), 1.0 / n, device="cuda")
x = [torch.empty(n, n, device="cuda") for _ in range(BUFFERS)]
y = [torch.empty(n, n, device="cuda") for _ in range(BUFFERS)]
scratch = [torch.empty(n, n, device="cuda") for _ in range(2)]
up, compute, down = (torch.cuda.Stream() for _ in range(3))
copied, computed, stored = ([torch.cuda.Event() for _ in range(BUFFERS)] for _ in range(3))


def work():
    for batch in range(batches):
        b = batch % BUFFERS
        with torch.cuda.stream(up):
            if batch >= BUFFERS:
                up.wait_event(computed[b])
            x[b].copy_(inputs[batch % hosts], non_blocking=True)
            copied[b].record(up)
        with torch.cuda.stream(compute):
            compute.wait_event(copied[b])
            if batch >= BUFFERS:
                compute.wait_event(stored[b])
            source = x[b]
            for product in range(products):
                target = y[b] if product == products - 1 else scratch[product % 2]
                torch.matmul(source, weights, out=target)
                source = target
            computed[b].record(compute)
        with torch.cuda.stream(down):
            down.wait_event(computed[b])
            outputs[batch % hosts].copy_(y[b], non_blocking=True)
            stored[b].record(down)


serve(torch, {"run": work})
