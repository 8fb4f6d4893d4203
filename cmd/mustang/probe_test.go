// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/podlink"
	"mustang/internal/testkit"
)

// TestProbeJSON compares the report with the probes of the link modes, and checks that nothing is left behind.
func TestProbeJSON(t *testing.T) {
	testkit.RequireRoot(t)
	// The first probe loads modules.
	code, _, stderr := command(t, nil, "probe")
	testkit.Require(t, code == exitDone, "exit code %d, stderr %q", code, stderr)
	before := testkit.RootSnapshot(t)
	code, stdout, stderr := command(t, nil, "probe", "-o", "json")
	testkit.Require(t, code == exitDone && stderr == "", "exit code %d, stderr %q", code, stderr)
	after := testkit.RootSnapshot(t)
	testkit.Check(t, after == before, "the root namespace was\n%s\nand is\n%s", before, after)
	var report probeReport
	decoder := json.NewDecoder(strings.NewReader(stdout))
	decoder.DisallowUnknownFields()
	testkit.Succeed(t, decoder.Decode(&report))
	testkit.Check(t, report.Schema == 1 && report.Kernel != "" && len(report.LinkModes) == len(podlink.Modes()),
		"report is %+v", report)
	for i, mode := range podlink.Modes() {
		t.Run(mode.Name(), func(t *testing.T) {
			r, err := report.LinkModes[i], mode.Probe()
			testkit.Check(t, r.Name == mode.Name() && r.Available == (err == nil) && r.Available == (r.Missing == ""),
				"%v, but probe says %+v", err, r)
			needs := mode.Traits().Needs
			testkit.Check(t, !r.Available || needs == podlink.NeedsOpenVSwitch ||
				strings.HasSuffix(r.Detail, ", BIG TCP") == mode.Traits().BigTCP,
				"the details are %q", r.Detail)
			var lacks *podlink.UnsupportedError
			if errors.As(err, &lacks) && (!strings.Contains(r.Missing, lacks.Module) ||
				!strings.Contains(r.Missing, lacks.Since) ||
				r.Module != lacks.Module || r.Since != lacks.Since) {
				t.Errorf("%+v does not name module %s and Linux %s", r, lacks.Module, lacks.Since)
			}
			testkit.RequireMode(t, err)
		})
	}
	for _, f := range report.Features {
		testkit.Check(t, f.Name != "" && f.Group != "" && f.Use != "" && f.Available == (f.Missing == "") &&
			!strings.Contains(f.Missing, "\n"),
			"feature %+v", f)
	}
}

// TestProbeMissing describes missing requirements on one line.
func TestProbeMissing(t *testing.T) {
	ipvlan := &podlink.UnsupportedError{
		Mode: "ipvlan-l2", Feature: "ipvlan devices", Module: "ipvlan", Since: "3.19", Kernel: "6.18.1", Err: unix.EOPNOTSUPP,
	}
	netkit := &podlink.UnsupportedError{Mode: "netkit", Feature: "netkit devices", Module: "netkit", Since: "6.7",
		Kernel: "6.1.0-1"}
	for want, test := range map[string]struct {
		kernel string
		check  check
		err    error
	}{
		"ipvlan devices: module ipvlan (since Linux 3.19)":                 {"9.9-none", check{}, ipvlan},
		"netkit devices: since Linux 6.7 (module netkit), this is 6.1.0-1": {"6.1.0-1", check{}, netkit},
		"no program ovs-vswitchd (Debian package openvswitch-switch)": {"", check{}, errors.New(
			"no program ovs-vswitchd (Debian package openvswitch-switch)")},
		"one; two":                {"", check{}, errors.New("one\ntwo")},
		"Debian package iptables": {"", check{needs: "Debian package iptables"}, fmt.Errorf("look: %w", fs.ErrNotExist)},
		"Linux 6.6":               {"", check{needs: "Linux 6.6"}, &objects.UnsupportedError{Feature: "tcx", Kernel: "6.6"}},
		"module geneve":           {"9.9-none", check{module: "geneve"}, fmt.Errorf("create: %w", unix.EOPNOTSUPP)},
		"module sch_fq (operation not permitted)": {"9.9-none", check{module: "sch_fq"}, fmt.Errorf("add: %w", unix.EPERM)},
	} {
		got := test.check.missing(&prober{kernel: test.kernel}, test.err)
		testkit.Check(t, got == want, "%v: missing is %q, want %q", test.err, got, want)
	}
}

// TestProbeOlder compares kernels by number, not by letter.
func TestProbeOlder(t *testing.T) {
	for _, test := range []struct {
		release, version string
		want             bool
	}{
		{"6.12.9-amd64", "6.7", false}, {"6.6.1", "6.7", true}, {"6.7.0-rc1", "6.7", false}, {"5.10.0-1", "6.6", true},
		{"6.18.44-fc", "3.19", false}, {"2.6.32", "2.6.33", true},
	} {
		got := older(test.release, test.version)
		testkit.Check(t, got == test.want, "%s is older than %s: %v", test.release, test.version, got)
	}
}
