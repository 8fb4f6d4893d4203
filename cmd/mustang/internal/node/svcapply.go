// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/document"
	"mustang/internal/lock"
	"mustang/internal/service"
	"mustang/internal/service/manifest"
)

// EnvSaved is the environment variable with the file that svc apply saves, /var/lib/mustang/services.json by default.
const EnvSaved = "MUSTANG_SAVED_SERVICES"

type manifestFlags struct {
	path    string
	options manifest.Options
}

func (m *manifestFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&m.path, "file", "f", "", "`FILE` of services in YAML or JSON; - is standard input")
	cmd.Flags().StringVar(&m.options.Node, "node", "",
		"name of this node in Kubernetes, for local backends and topology hints")
	cmd.Flags().StringVar(&m.options.Zone, "zone", "", "name of this node's zone in Kubernetes, for topology hints")
	cmd.PreRunE = cli.Check(func([]string) error {
		if m.path == "" {
			return errors.New("-f FILE is missing")
		}
		return nil
	})
}

// readManifest reads the file, and writes to stderr what it ignores. It waits for a terminal or a pipe until ctx ends.
func (c commands) readManifest(ctx context.Context, m manifestFlags) ([]service.Service, error) {
	name := cli.InputName(m.path)
	set, err := cli.ReadInput(ctx, c.Environment, m.path, func(in io.Reader) (manifest.Set, error) {
		var text bytes.Buffer
		set, err := manifest.Read(io.TeeReader(in, &text), m.options)
		if err != nil {
			return set, fmt.Errorf("%s: %w", name, err)
		}
		if unknown := unknownFields(&text); len(unknown) > 0 {
			set.Notes = append(set.Notes, "ignored: "+cli.FirstOf(unknown, 1))
		}
		return set, nil
	})
	for _, note := range set.Notes {
		fmt.Fprintf(c.Stderr, "mustang: %s: %s\n", name, note)
	}
	return set.Services, err
}

// unknownFields names one field of each object that Kubernetes objects do not have.
func unknownFields(file io.Reader) (unknown []string) {
	// manifest.Read reports all other errors.
	_ = document.Each(file, func(where string, data jsontext.Value) error {
		var o document.Object
		if err := document.Decode(data, &o); err != nil {
			return err
		}
		return document.EachObject(where, o, data, func(_ string, o document.Object, data jsontext.Value) error {
			kinds := map[string]any{"Service": &corev1.Service{}, "EndpointSlice": &discoveryv1.EndpointSlice{}}
			if kinds[o.Kind] == nil {
				return nil
			}
			err := json.Unmarshal(data, kinds[o.Kind], json.RejectUnknownMembers(true))
			if errors.Is(err, json.ErrUnknownName) {
				unknown = append(unknown, document.OneLine(fmt.Sprintf("%s %s/%s: %v", o.Kind, o.Metadata.Namespace,
					o.Metadata.Name, document.Explain(err))))
			}
			return nil
		})
	})
	return unknown
}

func (c commands) savedFlag(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVar(path, "saved", cmp.Or(c.Getenv(EnvSaved), "/var/lib/mustang/services.json"),
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
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			services, err := c.readManifest(ctx, m)
			if err != nil {
				return err
			}
			return savedFile(path).replace(ctx, services, func() error { return c.applyServices(ctx, services) })
		}),
	}
	m.add(cmd)
	c.savedFlag(cmd, &path)
	return cmd
}

func (c commands) applyServices(ctx context.Context, services []service.Service) error {
	return c.OnDatapath(ctx, func(d *datapath.Datapath) error {
		result, err := d.Services().Apply(ctx, service.CLI, services)
		err = hintOwner(err)
		if err != nil && result.Added+result.Updated+result.Deleted == 0 {
			return err
		}
		return errors.Join(err, c.Printf("services: %d added, %d updated, %d deleted, %d unchanged\n", result.Added,
			result.Updated, result.Deleted, result.Unchanged))
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
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			want, err := c.readManifest(ctx, m)
			if err != nil {
				return err
			}
			have, err := c.ownServices(ctx)
			if err != nil {
				return err
			}
			return manifest.WriteDiff(c.Stdout, service.Diff(have, want))
		}),
	}
	m.add(cmd)
	return cmd
}

func (c commands) ownServices(ctx context.Context) ([]service.Service, error) {
	all, err := cli.Read(c.Config, func(d *datapath.Datapath) ([]service.Service, error) { return d.Services().List(ctx) })
	return slices.DeleteFunc(all, func(s service.Service) bool { return s.Owner != service.CLI }), err
}

func (c commands) svcExport() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "export",
		Short:   "Print the services of the command line as svc apply takes them",
		Example: "  mustang svc export -o json",
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			own, err := c.ownServices(ctx)
			if err != nil {
				return err
			}
			if format == "json" {
				return manifest.WriteJSON(c.Stdout, own)
			}
			return manifest.WriteYAML(c.Stdout, own)
		}),
	}
	cli.AddFormats(cmd, &format, "yaml", "json")
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
		RunE: cli.AsRoot(func(ctx context.Context, _ []string) error {
			services, err := savedFile(path).read()
			if err != nil {
				return fmt.Errorf("saved services: %w", err)
			}
			return c.applyServices(ctx, services)
		}),
	}
	c.savedFlag(cmd, &path)
	return cmd
}

// savedFile is the path of a file of services, in JSON of package manifest, that only root can read.
type savedFile string

func (f savedFile) read() ([]service.Service, error) {
	file, err := openRegular(string(f))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	set, err := manifest.Read(file, manifest.Options{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f, err)
	}
	return set.Services, nil
}

// replace writes services to a new file, calls apply, and renames the file if apply returned no error. So a full disk
// is found before anything is applied. Only one process at a time does this: errors of lock.Take.
func (f savedFile) replace(ctx context.Context, services []service.Service, apply func() error) (err error) {
	path := string(f)
	if info, err := os.Stat(path); path == "" || strings.HasSuffix(path, "/") || err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("save services in %q: not the path of a regular file", path)
	}
	dir, fresh := filepath.Dir(path), filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := lock.Take(ctx, dir, nil)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	_ = os.Remove(fresh)   // of a killed process
	defer os.Remove(fresh) // unless it has been renamed
	file, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(manifest.WriteJSON(file, services), file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := apply(); err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync() // some file systems cannot
		_ = d.Close()
	}
	return nil
}
