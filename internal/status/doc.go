// Package status reports which container and pod uses which GPU, how much of its memory, and with
// which processes.
//
// Read finds the containers by the records that the shim leaves in their bundles, Join adds the
// GPUs and the answer of NVML, and Print shows the result:
//
//	records := status.Source{Proc: procfs.Host, Root: "/", StateDirs: status.StateDirs}.Read()
//	s := status.Join(procfs.Host, inventory, live, nvmlErr, records)
//	s.Print(term.New(os.Stdout))
//
// A process belongs to the container of its cgroup. The package changes nothing and executes
// nothing; without an answer from NVML it still shows which container has which GPU.
package status
