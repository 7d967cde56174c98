//! The macro that turns the table of keys into structs, defaults and rows.

/// Defines a struct per section with its `Default`, the struct `Values` of all sections, and the tables
/// `SECTIONS` and `KEYS`. The syntax is that of [`super::schema`].
macro_rules! sections {
    ($(
        $(#[doc = $purpose:literal])+
        $section:ident: $Section:ident {
            $(
                $(#[doc = $meaning:literal])+
                $key:ident: $type:ty = $default:expr; $class:ident, $kind:expr, $example:expr
                $(=> $($attribute:ident($($argument:expr)?)),+)?;
            )+
        }
    )+) => {
        $(
            #[doc = concat!("`[", stringify!($section), "]`:", $($purpose),+)]
            #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
            #[serde(default, deny_unknown_fields)]
            pub struct $Section {
                $($(#[doc = $meaning])+ pub $key: $type,)+
            }

            impl Default for $Section {
                fn default() -> Self {
                    Self { $($key: $default),+ }
                }
            }
        )+

        /// The value of every key.
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Values {
            $($(#[doc = $purpose])+ pub $section: $Section,)+
        }

        /// The sections, in the order in which recipes are written, each with its purpose.
        pub static SECTIONS: &[(&str, &str)] = &[
            $((stringify!($section), $crate::recipe::key::doc_text(concat!($($purpose),+)))),+
        ];

        /// Every key, section by section.
        pub static KEYS: &[$crate::recipe::key::Key] = &[$($(
            $crate::recipe::key::Key::new(
                concat!(stringify!($section), ".", stringify!($key)),
                $crate::recipe::key::Class::$class,
                $kind,
                $crate::recipe::key::doc_text(concat!($($meaning),+)),
                $example,
            )$($(.$attribute($($argument)?))+)?
        ),+),+];
    };
}

pub(super) use sections;
