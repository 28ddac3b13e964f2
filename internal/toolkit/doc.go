// Package toolkit converts the configuration of NVIDIA's container toolkit to one for the shim, for
// `nvidia-shimctl install --from-toolkit`.
//
// In: nvidia-container-runtime/config.toml of a host. Out: every option that it sets, with what
// becomes of it and why, and the text of a config.toml for the shim with those that have a meaning
// here.
//
//	r, err := toolkit.Read("/", toolkit.Paths, config.DefaultPath)
//	for _, o := range r.Options { fmt.Println(o.Key, o.State, o.To, o.Why) }
//	os.Stdout.WriteString(r.Text)
//
// For an option that is commented out in the toolkit's file, the shim's default replaces the
// toolkit's; the notes name the few that differ. The mode is the exception: its default is carried
// over. Nothing is guessed: a value that this package does not understand is reported and not
// carried over.
package toolkit
