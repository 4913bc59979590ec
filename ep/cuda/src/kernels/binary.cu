// Ops of two or three inputs of one dtype to that dtype.
#include "binary.cuh"

#define OF(op, name, four, type)                                        \
    KERNEL(sv_##name##_##type) {                                        \
        map2<type, type, Apply<type, op<Wide<type>>, four>>(arguments); \
    }

EACH_BINARY(OF)
#undef OF

#define OF(op, name) \
    KERNEL(sv_##name) { map2<u8, u8, Apply<u8, op<u8>, true>>(arguments); }

EACH_BINARY_OF_BOOL(OF)
#undef OF

#define OF(op, name, type)                           \
    KERNEL(sv_##name##_##type) {                     \
        map3<type, type, op<type>>(arguments);       \
    }

EACH_TERNARY(OF)
