// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// bareProgram is a program for bare guests.
const bareProgram = "./testdata/guest"

// bareOptions returns options for a bare guest whose program is that of testdata.
func bareOptions(t *testing.T, arguments ...string) Options {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireTool(t, qemu)
	kernel := testkit.Must(fetchOnce())(t)
	return Options{
		Kernel: kernel, Init: buildOnce(t, bareProgram), Bare: true, Command: append([]string{Program}, arguments...),
		MemoryMB: 128, Timeout: time.Minute,
	}
}

// TestInput sends a bare guest's command more input than any buffer holds, and the end of it.
func TestInput(t *testing.T) {
	t.Parallel()
	o := bareOptions(t)
	sent := bytes.Repeat([]byte("mustang\n"), 1<<17)
	var stdout, stderr bytes.Buffer
	o.Stdin, o.Stdout, o.Stderr = bytes.NewReader(sent), &stdout, &stderr
	code, err := Run(t.Context(), o)
	if err != nil || code != 3 || !bytes.Equal(stdout.Bytes(), sent) || stderr.Len() > 0 {
		t.Errorf("exit code %d, %v; %d bytes of %d came back; stderr %q", code, err, stdout.Len(), len(sent), &stderr)
	}
}

// TestNotBooted gives a guest no time to boot, and then runs a program that does not exist.
func TestNotBooted(t *testing.T) {
	t.Parallel()
	o := bareOptions(t)
	o.BootTimeout = time.Millisecond
	_, err := Run(t.Context(), o)
	var guest *GuestError
	if !errors.As(err, &guest) || !strings.Contains(err.Error(), "not booted after 1ms") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
	var stderr bytes.Buffer
	o.BootTimeout, o.Command, o.Stderr = 0, []string{"no-such-program"}, &stderr
	if code, err := Run(t.Context(), o); err != nil || code != 127 ||
		!strings.Contains(stderr.String(), "no-such-program") {
		t.Errorf("exit code %d, %v, stderr %q", code, err, &stderr)
	}
}

// TestNetwork talks to a guest from a network namespace. Labs have guests with offload.
func TestNetwork(t *testing.T) {
	t.Parallel()
	o := bareOptions(t, ":7")
	ns := testkit.Namespace(t, "host")
	o.Network = &Network{
		TAP: openTAP(t, ns), MAC: "02:00:00:00:00:07", MTU: 1400, NoOffload: true,
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.7.2/32"), netip.MustParsePrefix("fd00:7::2/128")},
		Gateways:  []netip.Addr{netip.MustParseAddr("192.168.7.1"), netip.MustParseAddr("fd00:7::1")},
	}
	in, end := io.Pipe()
	talked := false
	o.Stdin, o.Stdout = in, &started{io.Discard, func() {
		talked = true
		defer end.Close()
		for _, target := range []string{"192.168.7.2:7", "[fd00:7::2]:7"} {
			if err := talk(ns, target); err != nil {
				t.Errorf("%s: %v", target, err)
			}
		}
	}}
	if code, err := Run(t.Context(), o); err != nil || code != 3 || !talked {
		t.Errorf("exit code %d, %v", code, err)
	}
}

// openTAP makes a guest's TAP device in a namespace. The guest finds the way back by its default routes only.
func openTAP(t *testing.T, ns *netns.Namespace) (tap *os.File) {
	t.Helper()
	err := ns.Do(func() (err error) {
		tap, err = OpenTAP("tap0")
		return err
	})
	testkit.Succeed(t, err)
	t.Cleanup(func() { _ = tap.Close() })
	testkit.Succeed(t, rtnl.In(ns).SetSysctl("net/ipv6/conf/tap0/accept_dad", "0"))
	err = rtnl.In(ns).Configure("tap0", rtnl.DeviceConfig{Up: true, MTU: 1400, Addresses: []netip.Prefix{
		netip.MustParsePrefix("192.168.7.1/24"), netip.MustParsePrefix("fd00:7::1/64"),
	}})
	testkit.Succeed(t, err)
	return tap
}

// talk has the guest send back more than one packet takes.
func talk(ns *netns.Namespace, target string) error {
	conn, err := testkit.Dial(ns, "tcp", target)
	if err != nil {
		return err
	}
	defer conn.Close()
	sent := bytes.Repeat([]byte("mustang "), 1<<12)
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	go func() { _, _ = conn.Write(sent) }()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if !bytes.Equal(got, sent) {
		return errors.New("other bytes came back")
	}
	return nil
}

// TestAcceleration checks that the answer about KVM is cached.
func TestAcceleration(t *testing.T) {
	t.Parallel()
	o := bareOptions(t)
	found, err := Acceleration(t.Context(), o.Kernel)
	if err != nil || found != KVM && found != TCG {
		t.Fatalf("acceleration %q, %v", found, err)
	}
	accelerations.Lock()
	defer accelerations.Unlock()
	if cached := accelerations.of[o.Kernel.Image]; cached != found {
		t.Errorf("acceleration %q, cached %q", found, cached)
	}
	t.Logf("acceleration %s", found)
}

// TestStatic wants this package not to need C: where there is a C compiler,
// programs with package net are not static, and can't be a guest's Init.
func TestStatic(t *testing.T) {
	out := testkit.Must(exec.CommandContext(t.Context(), "go", "list", "-deps", "mustang/internal/vm").Output())(t)
	for _, name := range strings.Fields(string(out)) {
		if name == "net" || name == "os/user" {
			t.Errorf("vm needs package %s", name)
		}
	}
}
