// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"mustang/internal/podlink"
)

// shared is what the pods of a network on this host have in common, once it is
// made. It is kept beside the records, so that only the first ADD after a boot
// makes it, and all pods get the same.
type shared struct {
	// Boot and Digest say for which boot and which configuration this is.
	Boot   string `json:"boot"`
	Digest string `json:"digest"`
	// Link, Parent and MTU are the configuration's, or what was chosen.
	Link   string `json:"link"`
	Parent string `json:"parent"`
	MTU    int    `json:"mtu"`
	// Gateways are the host's own addresses, Routers the gateways that are not the host.
	Gateways []netip.Prefix `json:"gateways"`
	Routers  []netip.Addr   `json:"routers,omitempty"`
}

const sharedName = "network.json"

// digest is of all in the configuration that what is shared depends on.
func (c Config) digest(s shared) string {
	return short(fmt.Sprint(c.Link, "|", c.Parent, "|", c.Bridge, "|", c.OVSDB, "|", c.MTU, "|", c.Services, "|",
		c.Masquerade, "|", s.Gateways, "|", s.Routers), 16)
}

// setUp makes what is shared, or finds that it was made. again is set where it was
// found wanting.
func (a *attachment) setUp(given []address, again bool) (err error) {
	var want shared
	if want.Boot, err = bootID(); err != nil {
		return err
	}
	if want.Gateways, want.Routers, err = a.config.ends(given); err != nil {
		return err
	}
	want.Digest = a.config.digest(want)
	path := filepath.Join(a.plugin.runDir(a.config.Name), sharedName)
	if have, ok := readShared(path); ok && !again && have.Boot == want.Boot && have.Digest == want.Digest {
		if err := a.useLink(have); err != nil {
			return err
		}
		if a.intact() {
			return nil
		}
	}
	unlock, err := lockDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer unlock()
	if err := errors.Join(a.unleased(want.Gateways), a.choose(&want, path)); err != nil {
		return err
	}
	if err := a.useLink(want); err != nil {
		return err
	}
	if err := a.mode.Setup(a.network); err != nil {
		return err
	}
	if a.config.Masquerade {
		if err := masquerade(a.host, a.config.Name, want.Gateways); err != nil {
			return err
		}
	}
	if a.config.translatesSockets() {
		if err := a.translateSockets(); err != nil {
			return err
		}
	}
	return writeShared(path, want)
}

// intact reports whether the host still has what the notes say, as far as that is
// told quickly: what firewalls and network managers that start anew take away, and
// what translates sockets.
func (a *attachment) intact() bool {
	intact, err := a.network.Intact()
	return err == nil && intact && (!a.config.Masquerade || masquerades(a.host, a.config.Name, a.network.Gateways) == nil) &&
		(!a.config.translatesSockets() || a.checkHost() == nil)
}

// choose fills in what the configuration leaves open. What was chosen before in
// this boot stays.
func (a *attachment) choose(want *shared, path string) (err error) {
	want.Link, want.Parent, want.MTU = a.config.Link, a.config.Parent, a.config.MTU
	have, _ := readShared(path)
	if want.Parent == "" {
		if want.Parent, err = a.host.DefaultDevice(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if want.Link == LinkAuto {
		if have.Boot == want.Boot && have.Digest == want.Digest {
			want.Link = have.Link
		} else if want.Link, err = pickLink(); err != nil {
			return err
		}
		a.plugin.say("%s: link auto is %s on this host", a.config, want.Link)
	}
	if want.MTU != 0 {
		return nil
	}
	want.MTU = podlink.DefaultMTU
	if want.Parent == "" {
		return nil
	}
	device, err := a.host.Device(want.Parent)
	if err != nil {
		return invalid("parent: %v", err)
	}
	if device.MTU < want.MTU {
		want.MTU = device.MTU
	}
	return nil
}

// Preferred are the link modes that auto chooses from: those that need nothing but
// the kernel, the one with the least work per packet first (the README's table of
// instructions, with eBPF).
func Preferred() []string { return []string{"veth", "netkit", "bridge"} }

// pickLink is the first preferred mode that this kernel has.
func pickLink() (string, error) {
	var errs []error
	for _, name := range Preferred() {
		mode, err := podlink.Lookup(name)
		if err == nil {
			err = mode.Probe()
		}
		if err == nil {
			return name, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("link auto: %w", errors.Join(errs...))
}

func readShared(path string) (s shared, ok bool) {
	data, err := os.ReadFile(path)
	return s, err == nil && json.Unmarshal(data, &s) == nil
}

func writeShared(path string, s shared) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	temp := path + ".new"
	if err := os.WriteFile(temp, append(data, '\n'), 0o600); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return os.Rename(temp, path)
}

// lockDir takes the lock of a directory, which is made if need be.
func lockDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if _, err := lockFile(file, unix.LOCK_EX); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() { _ = file.Close() }, nil
}
