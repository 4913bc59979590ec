"""Eager additions of 1,024 elements, each of the one before. Sizes: additions."""

from turns import serve, sizes, torch_or_exit

torch = torch_or_exit()
(additions,) = sizes()
x = torch.ones(1024, device="cuda")


def work():
    y = x
    for _ in range(additions):
        y = y + x


serve(torch, {"run": work})
