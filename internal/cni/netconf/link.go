// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"mustang/internal/podlink"
)

// Links returns the values of key link: LinkAuto, and each link mode that needs no
// process to carry packets.
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

// AutoLinks returns the link modes that [LinkAuto] chooses from, in the order of preference.
func AutoLinks() (names []string) {
	for _, mode := range autoModes() {
		names = append(names, mode.Name())
	}
	return names
}

func autoModes() []podlink.Mode {
	modes := slices.DeleteFunc(podlink.Modes(), func(m podlink.Mode) bool { return m.Traits().AutoRank == 0 })
	slices.SortFunc(modes, func(a, b podlink.Mode) int { return cmp.Compare(a.Traits().AutoRank, b.Traits().AutoRank) })
	return modes
}

// SelectLink returns the first of [AutoLinks] that the running kernel supports. It
// creates devices in temporary network namespaces, which requires root.
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
