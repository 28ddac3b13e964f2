// Package docs proves that the pages say what the program does: README.md, docs/, the
// chart's README and the other pages in the root of the repository.
//
// Pages are compared with values of the program: keys and defaults of the configuration, options of
// a handler, fields of the record, commands and flags, targets of the Makefile. Links between pages
// resolve, each threat of the threat model is in the name of a test, and imports point down the
// floors of the architecture. The tests need neither root nor a GPU nor anything built.
package docs
