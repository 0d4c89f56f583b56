//! YAML as a tree whose values know where they are, read within bounds.
//!
//! The tree is made of events: what is too deep or too much ends the reading where it stands. An alias is the value that it
//! points to, not a copy of it, so that aliases of aliases take no memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Tag};

use super::{Place, SpecError, SpecErrorKind};
use crate::image::shown;

/// How deep values may lie in values: four times what a specification needs.
const DEEPEST: usize = 16;

/// The most values, keys included. An index cannot have as many images as this would describe.
const MOST_VALUES: usize = 200_000;

/// A value with its place.
#[derive(Debug)]
pub(super) struct Node<'a> {
    pub(super) place: Place,
    pub(super) value: Value<'a>,
}

/// What a value is. Scalars stay the text that they are written as: `3.20` is no number here.
#[derive(Debug)]
pub(super) enum Value<'a> {
    Null,
    Text(Cow<'a, str>),
    List(Vec<Rc<Node<'a>>>),
    Map(Vec<(Key<'a>, Rc<Node<'a>>)>),
}

/// A key of a mapping.
#[derive(Debug, Clone)]
pub(super) struct Key<'a> {
    pub(super) place: Place,
    pub(super) text: Cow<'a, str>,
}

impl Value<'_> {
    /// What it is, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
        }
    }
}

/// A list or mapping that is not at its end yet.
enum Open<'a> {
    List(Vec<Rc<Node<'a>>>),
    Map { entries: Vec<(Key<'a>, Rc<Node<'a>>)>, known: BTreeMap<Cow<'a, str>, Place>, key: Option<Key<'a>> },
}

struct Frame<'a> {
    place: Place,
    anchor: usize,
    open: Open<'a>,
}

/// Reads a text that is one document.
pub(super) fn read(text: &str) -> Result<Rc<Node<'_>>, SpecError> {
    let mut reader = Reader::default();
    let mut documents = 0;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| syntax(&error))?;
        let place = place_of(&span.start);
        if let Event::DocumentStart(_) = event {
            documents += 1;
            if documents > 1 {
                return Err(SpecErrorKind::SecondDocument.at(place));
            }
        }
        reader.take(event, place)?;
    }
    Ok(reader.root.unwrap_or_else(|| Rc::new(Node { place: Place::START, value: Value::Null })))
}

#[derive(Default)]
struct Reader<'a> {
    stack: Vec<Frame<'a>>,
    anchors: BTreeMap<usize, Rc<Node<'a>>>,
    root: Option<Rc<Node<'a>>>,
    values: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, event: Event<'a>, place: Place) -> Result<(), SpecError> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                check_tag(tag.as_deref(), place)?;
                let is_null = is_null(&text, style, tag.as_deref());
                let value = if is_null { Value::Null } else { Value::Text(text) };
                self.add(Rc::new(Node { place, value }), anchor)
            }
            Event::Alias(anchor) => {
                // What is not at its end yet would be part of itself.
                let Some(node) = self.anchors.get(&anchor).cloned() else {
                    return Err(SpecErrorKind::Recursive.at(place));
                };
                self.add(node, 0)
            }
            Event::SequenceStart(anchor, tag) => {
                check_tag(tag.as_deref(), place)?;
                self.open(place, anchor, Open::List(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                check_tag(tag.as_deref(), place)?;
                let open = Open::Map { entries: Vec::new(), known: BTreeMap::new(), key: None };
                self.open(place, anchor, open)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
        }
    }

    fn open(&mut self, place: Place, anchor: usize, open: Open<'a>) -> Result<(), SpecError> {
        if let Some(Frame { open: Open::Map { key: None, .. }, .. }) = self.stack.last() {
            return Err(SpecErrorKind::Key.at(place));
        }
        if self.stack.len() == DEEPEST {
            return Err(SpecErrorKind::Depth(DEEPEST).at(place));
        }
        self.stack.push(Frame { place, anchor, open });
        Ok(())
    }

    fn close(&mut self) -> Result<(), SpecError> {
        let Some(Frame { place, anchor, open }) = self.stack.pop() else { return Ok(()) };
        let value = match open {
            Open::List(entries) => Value::List(entries),
            Open::Map { entries, .. } => Value::Map(entries),
        };
        self.add(Rc::new(Node { place, value }), anchor)
    }

    /// Puts a value where it belongs. Anchors are numbered from 1.
    fn add(&mut self, node: Rc<Node<'a>>, anchor: usize) -> Result<(), SpecError> {
        self.values += 1;
        if self.values > MOST_VALUES {
            return Err(SpecErrorKind::Values(MOST_VALUES).at(node.place));
        }
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        match self.stack.last_mut().map(|frame| &mut frame.open) {
            None => self.root = Some(node),
            Some(Open::List(entries)) => entries.push(node),
            Some(Open::Map { entries, known, key }) => match key.take() {
                Some(key) => entries.push((key, node)),
                None => {
                    let Value::Text(text) = &node.value else {
                        return Err(SpecErrorKind::Key.at(node.place));
                    };
                    if let Some(first) = known.insert(text.clone(), node.place) {
                        return Err(SpecErrorKind::Twice { key: shown(text), first }.at(node.place));
                    }
                    *key = Some(Key { place: node.place, text: text.clone() });
                }
            },
        }
        Ok(())
    }
}

/// The core schema's spellings of nothing; in quotes they are texts.
fn is_null(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> bool {
    match tag {
        Some(tag) => tag.is_yaml_core_schema() && tag.suffix == "null",
        None => style == ScalarStyle::Plain && matches!(text, "" | "~" | "null" | "Null" | "NULL"),
    }
}

/// A tag may say what is the case anyway; others ask for what is not done.
fn check_tag(tag: Option<&Tag>, place: Place) -> Result<(), SpecError> {
    let usual = ["str", "int", "float", "bool", "null", "map", "seq"];
    match tag {
        Some(tag) if !(tag.is_yaml_core_schema() && usual.contains(&tag.suffix.as_str())) => {
            Err(SpecErrorKind::Tag(shown(&tag.to_string())).at(place))
        }
        _ => Ok(()),
    }
}

fn place_of(marker: &Marker) -> Place {
    Place { line: marker.line(), column: marker.col() + 1 }
}

fn syntax(error: &ScanError) -> SpecError {
    SpecErrorKind::Syntax(shown(error.info())).at(place_of(error.marker()))
}
