// Unary ops but casts.
#include "unary.cuh"

#define OF(op, name, type)                     \
    KERNEL(sv_##name##_##type) {               \
        map1<type, type, op<type>>(arguments); \
    }

EACH_UNARY(OF)
