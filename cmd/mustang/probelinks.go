// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"mustang/internal/datapath"
	"mustang/internal/podlink"
)

// linkChecks are one check for each link mode.
func linkChecks() []check {
	var checks []check
	for _, mode := range podlink.Modes() {
		checks = append(checks, check{name: mode.Name(), run: func(p *prober) (string, error) {
			if err := mode.Probe(); err != nil {
				return "", err
			}
			return modeDetail(p, mode), nil
		}})
	}
	return checks
}

// modeDetail says what a mode that is there works with.
func modeDetail(p *prober, mode podlink.Mode) string {
	switch mode.Needs() {
	case podlink.NeedsUplink:
		return "over an uplink"
	case podlink.NeedsRelay:
		return "with mustang tun in user space"
	case podlink.NeedsOpenVSwitch:
		if p.scratch.TryGeneric("ovs_datapath") != nil {
			return "with Open vSwitch's user-space datapath, for want of module openvswitch"
		}
		return "with Open vSwitch's kernel datapath"
	}
	return "with a device on the host for each pod"
}

// missing says in one line what is missing and, where it is not plain, what the
// kernel said.
func (c check) missing(p *prober, err error) string {
	var mode *podlink.UnsupportedError
	if errors.As(err, &mode) {
		if older(p.kernel, mode.Since) {
			return fmt.Sprintf("%s, which Linux %s brought (module %s); this is %s", mode.Feature, mode.Since, mode.Module, p.kernel)
		}
		return fmt.Sprintf("%s: %s (since Linux %s)", mode.Feature, p.module(mode.Module), mode.Since)
	}
	needs := c.needs
	if c.module != "" {
		needs = p.module(c.module)
	}
	if needs == "" {
		return oneLine(err)
	}
	if absent(err) {
		return needs
	}
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(next) {
		err = next
	}
	return needs + " (" + oneLine(err) + ")"
}

// module says how a module comes that isn't there.
func (p *prober) module(name string) string {
	switch listed, err := p.hasModule(name); {
	case err != nil: // no modules are installed for this kernel, or they are hidden
		return "module " + name
	case listed:
		return "modprobe " + name
	}
	return "module " + name + ", which this kernel was built without"
}

// hasModule looks for a module among those that are installed for this kernel.
func (p *prober) hasModule(name string) (bool, error) {
	list, err := os.ReadFile(filepath.Join("/lib/modules", p.kernel, "modules.dep"))
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(list)) {
		file, _, _ := strings.Cut(line, ":")
		base, _, _ := strings.Cut(filepath.Base(file), ".ko")
		if strings.ReplaceAll(base, "-", "_") == name {
			return true, nil
		}
	}
	return false, nil
}

// absent reports whether an error says no more than that something isn't there.
func absent(err error) bool {
	var feature *datapath.UnsupportedError
	var mount *datapath.BPFFSError
	return errors.As(err, &feature) || errors.As(err, &mount) || errors.Is(err, errors.ErrUnsupported) ||
		errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound)
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// older reports whether a kernel's release is before a version like "6.7".
func older(release, version string) bool {
	var have, want [3]int
	_, _ = fmt.Sscanf(release, "%d.%d.%d", &have[0], &have[1], &have[2])
	_, _ = fmt.Sscanf(version, "%d.%d.%d", &want[0], &want[1], &want[2])
	for i := range have {
		if have[i] != want[i] {
			return have[i] < want[i]
		}
	}
	return false
}
