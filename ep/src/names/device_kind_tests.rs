use super::*;
use crate::names::device_id::DeviceId;

fn row(name: &'static str, info: KindInfo) -> Row {
    Row { name, info }
}

#[test]
fn a_kind_and_an_optional_device_take_no_more_memory_than_numbers() {
    assert_eq!((size_of::<DeviceKind>(), size_of::<Option<DeviceKind>>()), (1, 1));
    assert_eq!((size_of::<DeviceId>(), size_of::<Option<DeviceId>>()), (8, 8));
}

#[test]
fn built_in_kinds_are_the_first_rows_and_contradict_themselves_nowhere() {
    for (index, kind) in DeviceKind::BUILT_IN.into_iter().enumerate() {
        assert_eq!(kind.index(), index);
        assert_eq!(kind.info().contradiction(), None, "{kind}");
        assert_eq!(DeviceKind::register(kind.name(), *kind.info()), Ok(kind));
    }
    assert!(DeviceKind::all().take(3).eq(DeviceKind::BUILT_IN));
}

#[test]
fn an_equal_record_is_registered_once_and_another_one_is_refused() {
    let kinds = Kinds::new();
    let plain = KindInfo::default();
    let first = kinds.register(row("npu", plain)).unwrap();
    assert_eq!(first.index(), 3);
    assert_eq!(kinds.register(row("npu", plain)), Ok(first));
    assert_ne!(kinds.register(row("tpu", plain)), Ok(first));
    for name in ["npu", "cpu"] {
        let refused = kinds.register(row(name, KindInfo { pinned_only: true, ..plain })).unwrap_err();
        assert!(matches!(refused, KindError::Taken { .. }));
        let text = refused.to_string();
        assert!(text.contains(&format!("`{name}`")) && text.contains("cpu, cuda, sim, npu, tpu"), "{text}");
    }
}

#[test]
fn threads_that_register_one_name_get_one_kind() {
    let kinds = Kinds::new();
    let names = ["a", "b", "c", "d"];
    let all = std::thread::scope(|scope| {
        let register = || names.map(|name| kinds.register(row(name, KindInfo::default())).unwrap());
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(register)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(
        all.iter().all(|found| *found == all[0]),
        "{:?}",
        all.iter().map(|it| it.map(DeviceKind::index)).collect::<Vec<_>>()
    );
}

#[test]
fn a_name_that_no_text_has_is_refused() {
    for name in ["", "Npu", "1npu", "n:pu", "n pu", "ñ", "host", "abcdefghijklmnopq"] {
        let refused = DeviceKind::register(name, KindInfo::default());
        assert_eq!(refused, Err(KindError::Name { name }));
    }
}

#[test]
fn a_record_that_contradicts_itself_is_refused() {
    let host = *DeviceKind::CPU.info();
    let device = KindInfo::default();
    let records = [
        KindInfo { host_memory: false, ..host },
        KindInfo { runs_functions: false, ..host },
        KindInfo { captures: true, ..host },
        KindInfo { pinned_only: true, ..host },
        KindInfo { fusion: Fusion::Kernels, ..host },
        KindInfo { lanes: Lanes::InGraphs, ..host },
        KindInfo { fusion: Fusion::Blocks, ..device },
        KindInfo { lanes: Lanes::OnThreads, ..device },
        KindInfo { lanes: Lanes::InGraphs, ..device },
    ];
    for record in records {
        let refused = DeviceKind::register("contrary", record);
        assert!(matches!(refused, Err(KindError::Contradiction { .. })), "{record:?}");
    }
    assert_eq!(DeviceKind::named("contrary"), None);
}

#[test]
fn a_table_takes_as_many_kinds_as_it_says() {
    let kinds = Kinds::new();
    let name = |number: usize| -> &'static str { format!("k{number}").leak() };
    for number in DeviceKind::BUILT_IN.len()..DeviceKind::MOST {
        assert_eq!(kinds.register(row(name(number), KindInfo::default())).map(DeviceKind::index), Ok(number));
    }
    let refused = kinds.register(row("late", KindInfo::default()));
    assert_eq!(refused, Err(KindError::TooMany { name: "late" }));
}
