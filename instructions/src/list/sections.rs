//! The check that the critical sections of a list begin and end in order. Planner and engine share it.

use crate::error::engine_error::Error;
use crate::list::kind::Kind;
use crate::tensor::critical::Section;
use streamvm_ep::Site;

/// A section that has begun and not ended.
#[derive(Clone, Debug)]
pub struct OpenSection {
    /// The section.
    pub section: Section,
    /// The line of the list that begins it; `None` if an earlier list does.
    pub line: Option<usize>,
    /// Where the caller issued its begin.
    pub site: Site,
}

/// The state of the check: the section that is open at the current line.
#[derive(Debug, Default)]
pub struct ListSections {
    open: Option<OpenSection>,
}

impl ListSections {
    /// The state before the first line; `open` is a section that an earlier list of this thread has left open.
    pub fn new(open: Option<OpenSection>) -> ListSections {
        ListSections { open }
    }

    /// The section that is open.
    pub fn open(&self) -> Option<&OpenSection> {
        self.open.as_ref()
    }

    /// Takes the next line in; only those that begin or end a section change the state.
    ///
    /// # Errors
    /// [`Error::NestedSection`] for a begin in an open section; [`Error::NoSection`] for an end of a section that is not open.
    pub fn line(&mut self, line: usize, kind: &Kind, site: Site) -> Result<(), Error> {
        match (kind, &self.open) {
            (Kind::SectionBegin(section), Some(open)) => Err(Error::NestedSection {
                line,
                section: section.to_string(),
                open: open.section.to_string(),
                site: open.site,
            }),
            (Kind::SectionBegin(section), None) => {
                self.open = Some(OpenSection { section: section.clone(), line: Some(line), site });
                Ok(())
            }
            (Kind::SectionEnd(section), Some(open)) if open.section.is(section) => {
                self.open = None;
                Ok(())
            }
            (Kind::SectionEnd(section), _) => Err(Error::NoSection { line, section: section.to_string(), site }),
            _ => Ok(()),
        }
    }

    /// Checks the state after the last line.
    ///
    /// # Errors
    /// [`Error::NotEnded`] if the list begins a section and does not end it.
    pub fn end(&self) -> Result<(), Error> {
        match &self.open {
            Some(OpenSection { section, line: Some(line), site }) if !section.stays_open() => {
                Err(Error::NotEnded { line: *line, section: section.to_string(), site: *site })
            }
            _ => Ok(()),
        }
    }
}
