// SPDX-License-Identifier: Apache-2.0

package svc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/service"
	"mustang/internal/service/manifest"
)

// EnvSaved is the environment variable with the file that svc apply saves.
const EnvSaved = "MUSTANG_SAVED_SERVICES"

// defaultSaved is that file by default.
const defaultSaved = "/var/lib/mustang/services.json"

// manifestFlags are those of commands that read services from a file.
type manifestFlags struct {
	path    string
	options manifest.Options
}

func (m *manifestFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&m.path, "file", "f", "", "`FILE` of services in YAML or JSON; - is standard input")
	cmd.Flags().StringVar(&m.options.Node, "node", "", "name of this node in Kubernetes, for local backends and topology hints")
	cmd.Flags().StringVar(&m.options.Zone, "zone", "", "name of this node's zone in Kubernetes, for topology hints")
}

// readManifest reads the file, and writes what it leaves out to stderr. It does not wait for a terminal or a pipe longer than
// ctx lasts.
func (c commands) readManifest(ctx context.Context, m manifestFlags) ([]service.Service, error) {
	if m.path == "" {
		return nil, cli.Usage(errors.New("--file is missing"))
	}
	name := cli.InputName(m.path)
	set, err := cli.ReadInput(ctx, c.Environment, m.path, func(in io.Reader) (manifest.Set, error) {
		set, err := manifest.Read(in, m.options)
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		return set, err
	})
	for _, note := range set.Notes {
		fmt.Fprintf(c.Stderr, "mustang: %s: %s\n", name, note)
	}
	return set.Services, err
}

func (c commands) savedFlag(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVar(path, "saved", cmp.Or(c.Getenv(EnvSaved), defaultSaved),
		"`FILE` from which svc restore restores the services ($"+EnvSaved+")")
}

func (c commands) svcApply() *cobra.Command {
	var m manifestFlags
	var path string
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Replace the services of the command line with the services of a file",
		Long: `Replace the services of the command line (owner cli in svc ls) with the services of a file: add,
change and delete what differs, and write nothing else. Services of other owners stay. The file
is in the form of svc export, or has Service and EndpointSlice objects of Kubernetes. All of it
is checked before anything is written. The set is saved for svc restore.`,
		Example: `  mustang svc apply -f services.yaml
  mustang svc apply -f - --zone=rack-1  # reads: kubectl get services,endpointslices -A -o json`,
		Args: cli.Arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			services, err := c.readManifest(cmd.Context(), m)
			if err != nil {
				return err
			}
			if err := cli.RequireRoot(cmd); err != nil {
				return err
			}
			return savedFile(path).replace(cmd.Context(), services, func() error {
				return c.applyServices(cmd.Context(), services)
			})
		},
	}
	m.add(cmd)
	c.savedFlag(cmd, &path)
	return cmd
}

// applyServices makes the services of the command line exactly those given, and prints what changed.
func (c commands) applyServices(ctx context.Context, services []service.Service) error {
	return c.OnDatapath(ctx, func(d *datapath.Datapath) error {
		result, err := d.Services().Apply(ctx, service.CLI, services)
		err = hintOwner(err)
		if err != nil && result.Added+result.Updated+result.Deleted == 0 {
			return err
		}
		_, printErr := fmt.Fprintf(c.Stdout, "services: %d added, %d updated, %d deleted, %d unchanged\n",
			result.Added, result.Updated, result.Deleted, result.Unchanged)
		return errors.Join(err, printErr)
	})
}

func (c commands) svcDiff() *cobra.Command {
	var m manifestFlags
	cmd := &cobra.Command{
		Use:   "diff -f FILE",
		Short: "Show what svc apply would change",
		Long: `Show what svc apply would change: a line for each service that it would add (+), change (~)
or delete (-), and below it the fields and backends that change. Nothing: no difference.`,
		Example: "  mustang svc diff -f services.yaml",
		Args:    cli.Arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			want, err := c.readManifest(cmd.Context(), m)
			if err != nil {
				return err
			}
			if err := cli.RequireRoot(cmd); err != nil {
				return err
			}
			have, err := c.ownServices(cmd.Context())
			if err != nil {
				return err
			}
			return manifest.WriteDiff(c.Stdout, service.Diff(have, want))
		},
	}
	m.add(cmd)
	return cmd
}

// ownServices lists the services of the command line.
func (c commands) ownServices(ctx context.Context) ([]service.Service, error) {
	all, err := cli.Read(c.Config, func(d *datapath.Datapath) ([]service.Service, error) { return d.Services().List(ctx) })
	var own []service.Service
	for _, s := range all {
		if s.Owner == service.CLI {
			own = append(own, s)
		}
	}
	return own, err
}

func (c commands) svcExport() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "export",
		Short:   "Print the services of the command line as svc apply takes them",
		Example: "  mustang svc export -o json",
		Args:    cli.Arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			write := manifest.WriteYAML
			switch format {
			case "yaml":
			case "json":
				write = manifest.WriteJSON
			default:
				return cli.Usage(fmt.Errorf("output %q: want yaml or json", format))
			}
			if err := cli.RequireRoot(cmd); err != nil {
				return err
			}
			own, err := c.ownServices(cmd.Context())
			if err != nil {
				return err
			}
			return write(c.Stdout, own)
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", "yaml", "output format: yaml or json")
	return cmd
}

func (c commands) svcRestore() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "restore",
		Short: "Apply the services that svc apply saved",
		Long: `Apply the services that the last svc apply saved. The unit mustang-services.service does it at
boot, when no service is there. What svc add and svc rm changed since is not saved.`,
		Example: "  mustang svc restore",
		Args:    cli.Arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.RequireRoot(cmd); err != nil {
				return err
			}
			services, err := savedFile(path).read()
			if err != nil {
				return fmt.Errorf("saved services: %w", err)
			}
			return c.applyServices(cmd.Context(), services)
		},
	}
	c.savedFlag(cmd, &path)
	return cmd
}
