use streamvm_stream::StreamType;

use super::*;

#[test]
fn every_error_with_a_line_is_mapped_to_the_line_of_the_list_that_was_given() {
    let device = ep::DeviceId::cpu(0);
    let (what, stream) = (String::new(), StreamKey::new(device, StreamType::Compute, 0));
    let (kind, site) = (ep::MemoryKind::Pageable, Site::caller());
    let full = ep::Error::OutOfMemory { device, kind, requested: 1, in_use: 0, limit: None };
    let with_line = |line| {
        let (what, target, name) = (what.clone(), what.clone(), what.clone());
        let (section, open) = (what.clone(), what.clone());
        [
            Error::OutOfMemory { line: Some(line), what: what.clone(), site, source: Box::new(full.clone()) },
            Error::Unordered { line, what: what.clone(), stream, site },
            Error::NeverWritten { line, what: what.clone(), operand: what.clone(), site },
            Error::Released { line, what: what.clone(), operand: what.clone(), site },
            Error::Lent { line, what: what.clone(), operand: what.clone(), site },
            Error::Foreign { line, operand: what.clone(), what, site },
            Error::WaitsForLater { line, target, site },
            Error::TooManyStreams { line, stream, most: 0 },
            Error::TooManyWaits { line, most: 0 },
            Error::RecordedTwice { line, site },
            Error::NotEnded { line, section: section.clone(), site },
            Error::NestedSection { line, section: section.clone(), open, site },
            Error::NoSection { line, section, site },
            Error::Placeholder { line, name, site },
        ]
    };
    // One instruction became three.
    let lines = [0, 1, 1, 1, 2];
    for (error, expected) in with_line(4).into_iter().zip(with_line(2)) {
        assert_eq!(error.by_lines(&lines), expected);
    }
    let past = Error::RecordedTwice { line: 9, site };
    assert_eq!(past.clone().by_lines(&lines), past);
}
