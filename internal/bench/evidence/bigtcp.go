// SPDX-License-Identifier: Apache-2.0

package evidence

import (
	"mustang/internal/lab"
	"mustang/internal/rtnl"
)

// findSmall notes the ends of a path with BIG TCP whose devices do not take its packets. How large packets are depends on
// the speed of the machine, so their mean size proves nothing.
func (c *sampleCheck) findSmall(l *lab.Lab) error {
	if !c.Lab.BigTCP {
		return nil
	}
	for _, place := range []string{c.Client, c.Server} {
		ns, err := l.Namespace(place)
		if err != nil {
			return err
		}
		takes, err := rtnl.In(ns).TakesBigTCP(l.Device(place))
		if err != nil {
			return err
		}
		if !takes {
			c.small = append(c.small, place)
		}
	}
	return nil
}

// checkBigTCP reports those ends.
func (c *sampleCheck) checkBigTCP() {
	for _, place := range c.small {
		c.add("the device of %s takes no packets of BIG TCP", place)
	}
}
