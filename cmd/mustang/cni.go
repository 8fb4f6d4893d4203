// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"mustang/internal/cni"
	"mustang/internal/install"
)

// defaultSubnet is where pods' addresses come from if nobody says.
const defaultSubnet = "10.77.0.0/16"

func (c *config) cni() *cobra.Command {
	return group("cni", "The CNI plugin: links and services for container runtimes", c.cniInstall(), c.cniUninstall())
}

// cniPlace is where a runtime looks, and the plugin to copy there.
type cniPlace struct {
	install.Place
	plugin string
}

func (p *cniPlace) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&p.BinDir, "bin-dir", install.DefaultBinDir, "directory of the runtime's plugins")
	flags.StringVar(&p.ConfDir, "conf-dir", install.DefaultConfDir, "directory of the runtime's network configurations")
	flags.StringVar(&p.ConfName, "conf-name", install.DefaultConfName, "name of the configuration; runtimes take the first by name")
	flags.StringVar(&p.plugin, "plugin", "", "the plugin's program (default: mustang-cni beside mustang, or in ../lib/cni)")
}

// source is the path of the plugin's program.
func (p *cniPlace) source() (string, error) {
	if p.plugin != "" {
		return p.plugin, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the plugin: %w", err)
	}
	return install.FindPlugin(self)
}

// cniInstallation is what cni install is told.
type cniInstallation struct {
	cniPlace
	install.Network
	subnets, gateways, hosts []string
	force                    bool
}

func (c *config) cniInstall() *cobra.Command {
	var i cniInstallation
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install the CNI plugin and a network for container runtimes",
		Long: `Install the CNI plugin and a network for container runtimes: the program mustang-cni, and
then a configuration that names it. Each appears whole or not at all, and a step that
fails undoes what came before. What is there and the same is not touched; what is there
and not ours is replaced with --force only.

Link auto is the first of ` + strings.Join(cni.Preferred(), ", ") + ` that this kernel has, which is tried in a
namespace that is thrown away, and needs root. The configuration gets what was picked.

The gateway of the pods' subnet is the host: it takes that address, the subnet's first or
the one by --gateway. If the network has a router already, as that of a macvlan's parent
mostly has, give the host an address of its own by --host-address: then the gateway is the
router, and its address is left alone. Otherwise both would have it.`,
		Example: `  mustang cni install --link auto --masquerade
  mustang cni install --link macvlan --parent eth1 --subnet 10.1.0.0/16 --subnet fd00:1::/64
  mustang cni install --link macvlan --parent eth1 --subnet 192.0.2.0/24 --gateway 192.0.2.1 --host-address 192.0.2.2
  mustang cni install --bin-dir /usr/lib/cni --cni-version 1.0.0`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.installCNI(cmd, i) },
	}
	i.addFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&i.Link, "link", cni.LinkAuto, "link mode of the pods (mustang probe lists them), or auto")
	flags.StringVar(&i.Name, "name", "mustang", "name of the network")
	flags.StringVar(&i.Parent, "parent", "", "the host's device to the outside (default: the one of the default route)")
	flags.StringVar(&i.Bridge, "bridge", "", "name of the bridge, for link modes with one")
	flags.IntVar(&i.MTU, "mtu", 0, "MTU of the pods' devices, in bytes; 0 for the parent's, 1500 at most")
	flags.StringVar(&i.Services, "services", "", "how pods reach services: socket, tc, both or off (default: the plugin's)")
	flags.BoolVar(&i.Masquerade, "masquerade", false, "hide the pods' addresses from what is outside of their network")
	flags.StringArrayVar(&i.subnets, "subnet", []string{defaultSubnet}, "where pods' addresses come from; once for each of IPv4 and IPv6")
	flags.StringArrayVar(&i.gateways, "gateway", nil, "the gateway of the subnet of its family, an address that the host takes, unless there is a --host-address")
	flags.StringArrayVar(&i.hosts, "host-address", nil, "the host's own address in the subnet of its family; the gateway there is another router")
	flags.StringVar(&i.CNIVersion, "cni-version", install.Versions()[0], "version of the CNI spec; 1.0.0 for older runtimes, such as Debian 12's")
	flags.BoolVar(&i.force, "force", false, "replace files that are not ours")
	return cmd
}

// installCNI installs, and says what it did.
func (c *config) installCNI(cmd *cobra.Command, i cniInstallation) error {
	if err := i.check(); err != nil {
		return usage(err)
	}
	plugin, err := i.source()
	if err != nil {
		return err
	}
	picked := ""
	if i.Link == cni.LinkAuto {
		if err := requireRoot(cmd); err != nil {
			return fmt.Errorf("%w to try link modes; without it, name one by --link", err)
		}
		if i.Link, err = install.PickLink(); err != nil {
			return err
		}
		picked = fmt.Sprintf("link auto is %s\n", i.Link)
	}
	conflist, err := i.Conflist()
	if err != nil {
		return err
	}
	changes, err := i.Install(plugin, conflist, i.force)
	if err != nil {
		var foreign *install.ForeignError
		if errors.As(err, &foreign) {
			return fmt.Errorf("%w: --force replaces it", err)
		}
		return err
	}
	if _, err := fmt.Fprint(c.stdout, picked); err != nil {
		return err
	}
	if err := c.printChanges(changes); err != nil {
		return err
	}
	return c.remarks(cmd.Context(), i, conflist)
}

// check judges the flags, and reads the subnets.
func (i *cniInstallation) check() error {
	if err := i.Place.Check(); err != nil {
		return err
	}
	i.Subnets = nil
	for _, text := range i.subnets {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("subnet %q: want a prefix like %s", text, defaultSubnet)
		}
		i.Subnets = append(i.Subnets, prefix)
	}
	for _, list := range []struct {
		flag  string
		texts []string
		into  *[]netip.Addr
	}{{"gateway", i.gateways, &i.Gateways}, {"host-address", i.hosts, &i.HostAddresses}} {
		*list.into = nil
		for _, text := range list.texts {
			addr, err := netip.ParseAddr(text)
			if err != nil {
				return fmt.Errorf("%s %q: want an address like 10.77.0.1", list.flag, text)
			}
			*list.into = append(*list.into, addr)
		}
	}
	_, err := i.Conflist()
	return err
}

// remarks are what the administrator may want to know of an installation that is
// done: what keeps it from being used.
func (c *config) remarks(ctx context.Context, i cniInstallation, conflist []byte) error {
	before, err := i.Before()
	if err != nil {
		return err
	}
	if len(before) > 0 {
		fmt.Fprintf(c.stderr, "mustang: note: in %s a runtime that takes one network takes %s, which comes first\n", i.ConfDir, before[0])
	}
	if os.Geteuid() != 0 {
		return nil
	}
	config, err := install.PluginConfig(conflist)
	if err != nil {
		return err
	}
	plugin := cni.Plugin{
		StateDir: c.getenv("MUSTANG_CNI_STATE_DIR"), RunDir: c.getenv("MUSTANG_CNI_RUN_DIR"), BPFRoot: c.getenv(envBPFRoot),
	}
	if err := plugin.Status(ctx, cni.Request{Config: config}); err != nil {
		fmt.Fprintf(c.stderr, "mustang: note: pods can't be attached yet: %s\n", oneLine(err))
	}
	return nil
}

func (c *config) cniUninstall() *cobra.Command {
	var place cniPlace
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the network's configuration and the CNI plugin",
		Long: `Remove the network's configuration, and then the plugin. What is not there is no error;
if a file is not ours, nothing is removed. A plugin that is no copy, such as that of the
Debian package, is left. Pods that are attached stay so, but their runtime needs the
plugin to delete them: delete them first.`,
		Example: "  mustang cni uninstall\n  mustang cni uninstall --bin-dir /usr/lib/cni",
		Args:    arguments(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			if err := place.Check(); err != nil {
				return usage(err)
			}
			keep, _ := place.source() // without one there is nothing to keep
			changes, err := place.Uninstall(keep)
			return errors.Join(c.printChanges(changes), err)
		},
	}
	place.addFlags(cmd)
	return cmd
}

func (c *config) printChanges(changes []install.Change) error {
	for _, change := range changes {
		if _, err := fmt.Fprintln(c.stdout, change); err != nil {
			return err
		}
	}
	return nil
}
