// Package idle suspends containers that asked for it when their GPUs have done nothing for a while.
//
//	w := idle.Watch{Records: source.Read, Suspend: suspend, Say: say, Proc: procfs.Host, State: state}
//	w.Add(ctx, observation) // each one that follows
//
// A container is idle while each of its GPUs is observed without a gap, does nothing, and has no
// process but those of the container. Whatever is not known is work. All that a Watch remembers is
// gone with it: after a restart each container has to be idle for its whole time again.
package idle
