// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"mustang/internal/podlink"
)

// Links returns the values of key link: LinkAuto, and each link mode that needs no process to carry packets.
func Links() []string {
	return append([]string{LinkAuto}, linksWith(func(podlink.Traits) bool { return true })...)
}

func linksWith(accept func(podlink.Traits) bool) (names []string) {
	for _, mode := range podlink.Modes() {
		if t := mode.Traits(); t.Needs != podlink.NeedsRelay && accept(t) {
			names = append(names, mode.Name())
		}
	}
	return names
}

// traits returns the traits of the link mode; zero with [LinkAuto].
func (c Config) traits() podlink.Traits {
	if mode, err := podlink.Lookup(c.Link); err == nil {
		return mode.Traits()
	}
	return podlink.Traits{}
}

// AutoLinks returns the link modes that [LinkAuto] chooses from, in the order of preference.
func AutoLinks() (names []string) {
	for _, mode := range autoModes() {
		names = append(names, mode.Name())
	}
	return names
}

// CheckProxied returns an error if services are off, and pods of a node bypass the host: rules of kube-proxy would
// translate packets to a cluster IP, but never see the answer.
func CheckProxied(link, services string) error {
	past := linksWith(func(t podlink.Traits) bool { return !t.Routed && !t.NetfilterCall })
	if services != ServicesOff || !slices.Contains(past, link) {
		return nil
	}
	return fmt.Errorf("link %s with services off: pods of a node answer each other past the host, so cluster IPs of "+
		"kube-proxy fail between them", link)
}

// Together reports whether pods of a network reach each other if they have these two link modes: they are the same, or
// the host routes for both.
func Together(a, b string) bool {
	routed := append([]string{LinkAuto}, linksWith(func(t podlink.Traits) bool { return t.Routed })...)
	return a == b || slices.Contains(routed, a) && slices.Contains(routed, b)
}

func autoModes() []podlink.Mode {
	modes := slices.DeleteFunc(podlink.Modes(), func(m podlink.Mode) bool { return m.Traits().AutoRank == 0 })
	slices.SortFunc(modes, func(a, b podlink.Mode) int { return cmp.Compare(a.Traits().AutoRank, b.Traits().AutoRank) })
	return modes
}

// SelectLink returns the first of [AutoLinks] that the running kernel supports. It requires root.
func SelectLink() (string, error) {
	var errs []error
	for _, mode := range autoModes() {
		err := mode.Probe()
		if err == nil {
			return mode.Name(), nil
		}
		if unsupported := (*podlink.UnsupportedError)(nil); !errors.As(err, &unsupported) {
			return "", fmt.Errorf("link auto: %w", err) // the other modes would fail alike
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("link auto: %w", errors.Join(errs...))
}
