//! Random steps on both kinds of trees.
