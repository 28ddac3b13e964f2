package request

import "fmt"

// migVariables ask for rights over all MIG devices, with the value "all" and no other.
var migVariables = []struct{ variable, right string }{
	{"NVIDIA_MIG_CONFIG_DEVICES", "config"}, {"NVIDIA_MIG_MONITOR_DEVICES", "monitor"},
}

// addMIG reads them. Like the other devices they count only beside a request for a GPU.
func (r *Request) addMIG(vars map[string]string) error {
	if len(r.Devices) == 0 {
		return nil
	}
	for _, v := range migVariables {
		switch value := vars[v.variable]; value {
		case "":
		case All:
			r.MIG = append(r.MIG, v.right)
		default:
			return fmt.Errorf("%s=%s: only \"all\" has a meaning", v.variable, Quote(value))
		}
	}
	return nil
}

// MIGVariables are the variables that asked for what is in MIG.
func (r Request) MIGVariables() []string {
	var names []string
	for _, v := range migVariables {
		for _, right := range r.MIG {
			if right == v.right {
				names = append(names, v.variable)
			}
		}
	}
	return names
}
