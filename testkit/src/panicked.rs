//! What a caught panic said.

use std::any::Any;

/// The text of a panic, whether it was formatted or is the program's own; empty if it had none.
pub fn text(panic: &(dyn Any + Send)) -> &str {
    let formatted = panic.downcast_ref::<String>().map(String::as_str);
    formatted.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::panic::{catch_unwind, panic_any};

    use super::text;

    #[test]
    fn a_panic_is_read_whether_its_text_was_formatted_or_not() {
        let said = |panics: fn()| {
            let panic = catch_unwind(panics).expect_err("it panics");
            text(&*panic).to_owned()
        };
        assert_eq!(said(|| panic!("at {}", 1 + 1)), "at 2");
        assert_eq!(said(|| panic!("as it stands")), "as it stands");
        assert_eq!(said(|| panic_any(2)), "");
    }
}
