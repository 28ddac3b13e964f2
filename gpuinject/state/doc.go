// Package state manages the state directory of the shim: facts about the driver, locks of this
// host, and the place for the views.
//
// All state is below one directory that only root may enter. Any process that could write there
// would choose what is mounted into containers, so owner and mode are checked at every use
// (invariant I11).
package state
