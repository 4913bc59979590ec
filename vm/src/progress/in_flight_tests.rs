use streamvm_cpu::{CpuConfig, CpuDevice};
use streamvm_ep::Site;

use super::*;

fn in_flight() -> InFlight {
    InFlight::new(Arc::new(CpuDevice::new(0, CpuConfig::default())), Arc::new(Parker::new()))
}

#[test]
fn a_proof_without_a_record_wakes_the_waiter_for_the_record() {
    let (in_flight, parker) = (in_flight(), Arc::new(Parker::new()));
    parker.prepare_park();
    assert_eq!(in_flight.when_recorded(1, &parker), RecordState::NotYet);
    in_flight.prove(1);
    assert!(!parker.is_parked(), "it sleeps on");
}

#[test]
fn after_the_event_is_released_a_waiter_waits_for_the_number() {
    let (in_flight, parker) = (in_flight(), Arc::new(Parker::new()));
    in_flight.note_record(1, Ok(in_flight.device.events().acquire()));
    assert!(matches!(in_flight.record_of(1), RecordState::By(_)));
    in_flight.complete(1);
    in_flight.release_events(1);
    assert_eq!(in_flight.when_recorded(1, &parker), RecordState::ByNumber);
    assert_eq!(in_flight.when_recorded(2, &parker), RecordState::NotYet);
}

fn wait(event: Option<EventId>) -> ConditionWait {
    let step = ep::ProgramStep { number: 0, name: "while", site: Site::caller() };
    ConditionWait::new(&Task::empty(), step, event)
}

/// The stream was waited for, because no event could be recorded: a poll sees that once, and the other streams after it.
#[test]
fn a_condition_without_an_event_is_known_by_a_proof() {
    let in_flight = in_flight();
    in_flight.begin_condition(wait(None));
    assert!(!in_flight.query() && in_flight.copied_condition().is_none());
    in_flight.prove(0);
    assert!(in_flight.has_undecided_condition() && in_flight.copied_condition().is_none());
    assert!(in_flight.query() && !in_flight.query());
    assert!(in_flight.copied_condition().is_some() && in_flight.take_condition().is_none());
    in_flight.decide_condition(false);
    assert!(in_flight.calls_context() && in_flight.copied_condition().is_none());
    assert_eq!(in_flight.take_condition(), Some(false));
    assert!(in_flight.take_condition().is_none() && !in_flight.calls_context());
}

/// Its event comes after everything launched, and is waited for although no waiter has asked.
#[test]
fn the_event_of_a_condition_shows_that_everything_launched_is_over() {
    let in_flight = in_flight();
    let mut stream = in_flight.device.create_stream().expect("a stream");
    let event = in_flight.device.events().acquire();
    stream.record(event).expect("a live event");
    in_flight.launched.store(3, Ordering::SeqCst);
    in_flight.begin_condition(wait(Some(event)));
    assert_eq!(in_flight.awaited(0), Some(event));
    assert!(in_flight.query());
    assert_eq!((in_flight.awaited(0), in_flight.record_of(3)), (None, RecordState::ByNumber));
    in_flight.decide_condition(true);
    assert_eq!(in_flight.take_condition(), Some(true));
    assert_eq!(in_flight.device.events().live(), 0);
}

#[test]
fn a_lost_device_ends_the_wait_for_a_condition() {
    let in_flight = in_flight();
    let event = in_flight.device.events().acquire();
    in_flight.begin_condition(wait(Some(event)));
    in_flight.lose(ep::Error::Injected("on purpose".to_owned()));
    assert!(in_flight.awaited(0).is_none() && in_flight.has_undecided_condition());
    assert!(in_flight.copied_condition().is_some());
    in_flight.decide_condition(false);
    assert_eq!(in_flight.take_condition(), Some(true));
}

#[test]
fn a_demand_for_less_is_not_hidden_by_one_for_more() {
    let in_flight = in_flight();
    in_flight.launched.store(3, Ordering::SeqCst);
    assert!(!in_flight.demand(5), "it is not launched");
    assert!(in_flight.demand(2));
    in_flight.note_record(3, Ok(in_flight.device.events().acquire()));
    assert!(!in_flight.needs_record());
}
