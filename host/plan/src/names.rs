//! Enums whose variants have names.

/// Declares an enum whose variants have names, by which records, settings and tables know them.
#[macro_export]
macro_rules! names {
    (
        $(#[$about:meta])*
        $visible:vis enum $enum:ident { $($(#[$of:meta])* $variant:ident = $name:literal,)+ }
    ) => {
        $(#[$about])*
        $visible enum $enum { $($(#[$of])* $variant,)+ }

        impl $enum {
            /// Every one, in order.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The name in records, settings and tables.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The names of all.
            pub fn names() -> impl Iterator<Item = &'static str> {
                Self::ALL.into_iter().map(Self::name)
            }

            /// The one of a name.
            pub fn of_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|known| known.name() == name)
            }
        }

        impl std::fmt::Display for $enum {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

/// Reads an enum of [`names!`] from its names. `$what` names it in errors, and `$lead` precedes the
/// list of names there.
#[macro_export]
macro_rules! from_name {
    ($enum:ident, $what:literal, $lead:literal) => {
        impl std::str::FromStr for $enum {
            type Err = String;

            fn from_str(text: &str) -> std::result::Result<Self, String> {
                Self::of_name(text).ok_or_else(|| $crate::words::unknown($what, text, $lead, Self::names()))
            }
        }
    };
}
