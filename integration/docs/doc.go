// Package docs proves that the documentation says what the code does: README.md,
// docs/ and the other pages in the root of the repository.
//
// Tables of the pages are compared with the sources that they describe: keys and
// defaults of the configuration, keys of a handler's options, the cases of the
// environment contract, the text of error messages, targets of the Makefile, links.
// The tests need neither root nor a GPU nor anything built.
package docs
