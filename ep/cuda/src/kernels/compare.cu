// Comparisons of two elements of one dtype, to bool.
#include "compare.cuh"

#define OF(op, name, type, stored)               \
    KERNEL(sv_##name##_##type) {                 \
        map2<stored, u8, op<stored>>(arguments); \
    }

EACH_COMPARISON(OF)
