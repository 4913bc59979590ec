// Ops of two inputs of one dtype to that dtype.
#include "binary.cuh"

#define OF(op, name, four, type)                                        \
    KERNEL(sv_##name##_##type) {                                        \
        map2<type, type, Apply<type, op<Wide<type>>, four>>(arguments); \
    }

EACH_BINARY(OF)

// As bytes: and, or.
KERNEL(sv_min_bool) { map2<u8, u8, Apply<u8, Min<u8>, true>>(arguments); }
KERNEL(sv_max_bool) { map2<u8, u8, Apply<u8, Max<u8>, true>>(arguments); }
