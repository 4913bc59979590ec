//! Which of several users, such as streams or segments, uses a thing alone.

/// For each of some things, numbered from 0, its users.
pub(super) struct Users<U>(Vec<Of<U>>);

/// The users of one thing.
#[derive(Copy, Clone)]
enum Of<U> {
    None,
    One(U),
    Several,
}

impl<U: Copy + PartialEq> Users<U> {
    /// So many things without users.
    pub(super) fn new(things: usize) -> Users<U> {
        Users(vec![Of::None; things])
    }

    /// Adds a user, who may be known already.
    pub(super) fn add(&mut self, thing: usize, user: U) {
        let of = &mut self.0[thing];
        *of = match *of {
            Of::None => Of::One(user),
            Of::One(known) if known == user => Of::One(user),
            Of::One(_) | Of::Several => Of::Several,
        };
    }

    /// The only user, if there is exactly one.
    pub(super) fn only(&self, thing: usize) -> Option<U> {
        if let Of::One(user) = self.0[thing] { Some(user) } else { None }
    }

    /// Whether there is more than one.
    pub(super) fn are_several(&self, thing: usize) -> bool {
        matches!(self.0[thing], Of::Several)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_the_only_one_until_another_comes() {
        let mut users = Users::new(2);
        assert_eq!((users.only(0), users.are_several(0)), (None, false));
        users.add(0, 'a');
        users.add(0, 'a');
        assert_eq!((users.only(0), users.are_several(0)), (Some('a'), false));
        users.add(0, 'b');
        users.add(0, 'a');
        assert_eq!((users.only(0), users.are_several(0), users.only(1)), (None, true, None));
    }
}
