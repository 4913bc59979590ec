//! Order and waiting: what runs when, who waits for what, and how engines start and stop.

mod arithmetic;
mod back_pressure;
mod completion;
mod composed;
mod conveniences;
mod engine_scenarios;
mod executor_scenarios;
mod fair_room;
mod held;
mod helping;
mod holes;
mod lifecycle;
mod numbers;
mod order;
mod parts;
mod policies;
mod priorities;
mod registered_ops;
mod sections;
mod simulated;
mod sorted;
mod strands;
mod submission;
mod tensors;
mod traces;
mod waiting;
