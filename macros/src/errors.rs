//! Several errors as one.

/// Collects errors, so that one compilation shows them all.
#[derive(Default)]
pub(crate) struct Errors(Option<syn::Error>);

impl Errors {
    /// The value, or nothing and one error more.
    pub(crate) fn keep<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                match &mut self.0 {
                    Some(first) => first.combine(error),
                    None => self.0 = Some(error),
                }
                None
            }
        }
    }

    /// All errors, if there were any.
    pub(crate) fn finish(self) -> syn::Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}
