package status

import (
	"fmt"
	"time"
)

// none is printed for an absent value.
const none = "-"

// Temperature returns the temperature of a GPU as text.
func (g GPU) Temperature() string {
	if g.Sensors == nil || g.Sensors.Temperature == nil {
		return none
	}
	return fmt.Sprintf("%d°C", *g.Sensors.Temperature)
}

// Power returns the power that a GPU draws, and may draw, as text.
func (g GPU) Power() string {
	switch s := g.Sensors; {
	case s == nil || s.Power == nil:
		return none
	case s.PowerLimit == nil:
		return fmt.Sprintf("%d W", watts(*s.Power))
	default:
		return fmt.Sprintf("%d/%d W", watts(*s.Power), watts(*s.PowerLimit))
	}
}

func watts(milliwatts uint32) uint32 { return (milliwatts + 500) / 1000 }

// ECC returns the number of ECC errors of a GPU since the driver was loaded as text.
func (g GPU) ECC() string {
	s := g.Sensors
	if s == nil || s.Corrected == nil || s.Uncorrected == nil {
		return none
	}
	return fmt.Sprintf("%d, %d uncorrected", *s.Corrected, *s.Uncorrected)
}

// LastXid returns the last critical Xid of a GPU since the driver was loaded as text.
func (g GPU) LastXid() string {
	if g.Health == nil || len(g.Health.Xids) == 0 {
		return none
	}
	x := g.Health.Xids[len(g.Health.Xids)-1]
	return fmt.Sprintf("%d at %s", x.Number, x.Time.Local().Format(time.DateTime))
}
