// SPDX-License-Identifier: Apache-2.0

// Package cni implements the verbs of the Container Network Interface (CNI spec 1.1.0) as functions over link modes.
//
// ADD records each part of an attachment before it creates the part. DEL, GC, a failed ADD, and the ADD after a killed
// one all delete the parts in the record.
package cni

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"mustang/internal/cgroup"
	"mustang/internal/cni/netconf"
	"mustang/internal/cni/record"
	"mustang/internal/datapath"
	"mustang/internal/datapath/objects"
	"mustang/internal/ipam"
	"mustang/internal/netns"
	"mustang/internal/podlink"
)

// Default directories of [Plugin].
const (
	DefaultStateDir = "/var/lib/cni/mustang" // reserved addresses, which expire with the boot
	DefaultRunDir   = "/run/mustang/cni"     // records of attachments
)

// Plugin is the plugin on one host: the network namespace of the process.
type Plugin struct {
	// StateDir, RunDir and BPFRoot are the directories of addresses, records and the datapath. Empty means
	// [DefaultStateDir], [DefaultRunDir] and objects.DefaultRoot.
	StateDir, RunDir, BPFRoot string
	// Cgroup is the directory of the cgroup whose sockets are translated; empty means the root cgroup.
	Cgroup string
	Shared *datapath.Shared // the datapath of a long-running process; nil: each verb opens it
	Stderr io.Writer        // gets a line for each automatic choice; nil discards them
	// DeleteDevice deletes the devices of pods: see podlink.Network.
	DeleteDevice func(ns *netns.Namespace, index int) error
	// Await waits until the cluster's policies for a Pod are in force. Without a name, Await waits for the policies of
	// other pods; nil: not supported. ADD calls it before any change if the configuration has netconf.PoliciesAgent.
	Await func(ctx context.Context, namespace, name, uid string) error
	// After is called after each step of ADD and each write of a record, and can fail these; nil: not called.
	After func(step string) error
}

// Request holds the parameters of a verb. Each verb uses the parameters that the CNI specification lists for it.
type Request struct {
	// ContainerID and IfName identify the attachment (CNI_CONTAINERID, CNI_IFNAME).
	ContainerID, IfName string
	// Netns is the path of the pod's network namespace, or empty (CNI_NETNS). Pod is the namespace itself, since the path
	// may not lead to it from here; nil: the verb opens the path.
	Netns  string
	Pod    *netns.Namespace
	Args   string // name, namespace and labels of the pod (CNI_ARGS)
	Path   string // directories of delegated plugins, separated by colons (CNI_PATH)
	Config []byte // the network configuration
}

func (r Request) owner() record.Owner {
	return record.Owner{ContainerID: r.ContainerID, IfName: r.IfName}
}

// awaitTime is how long ADD waits for policies. Then the runtime tries again.
const awaitTime = 10 * time.Second

// await waits for the policies of the pod. The error has the code "try again later".
func (p *Plugin) await(ctx context.Context, c netconf.Config, r Request) error {
	if !c.AwaitsAgent() {
		return nil
	}
	err := errors.New("no client of the agent is set")
	if p.Await != nil {
		ctx, cancel := context.WithTimeout(ctx, awaitTime)
		defer cancel()
		namespace, name, uid := netconf.KubernetesPod(r.Args)
		err = p.Await(ctx, namespace, name, uid)
	}
	if err != nil {
		return types.NewError(types.ErrTryAgainLater, "policies of the pod: "+oneLine(err), "")
	}
	return nil
}

func (p *Plugin) stepDone(step string) error {
	if p.After == nil {
		return nil
	}
	return p.After(step)
}

func (p *Plugin) records() record.Store                { return record.Store{Root: cmp.Or(p.RunDir, DefaultRunDir)} }
func (p *Plugin) addresses(network string) *ipam.Store { return ipam.Open(p.stateDir(network)) }

func (p *Plugin) stateDir(network string) string {
	return filepath.Join(cmp.Or(p.StateDir, DefaultStateDir), network)
}

func (p *Plugin) datapathOptions() datapath.Options { return datapath.Options{Root: p.BPFRoot} }

func (p *Plugin) cgroup() (string, error) {
	if p.Cgroup != "" {
		return p.Cgroup, nil
	}
	return cgroup.Root()
}

func (p *Plugin) logf(format string, args ...any) {
	if p.Stderr != nil {
		_, _ = fmt.Fprintf(p.Stderr, netconf.PluginType+": "+format+"\n", args...)
	}
}

// openPod opens the namespace of the pod, from the request or else at path. It must not be the host's.
func (r Request) openPod(path string, host *netns.Namespace) (*netns.Namespace, error) {
	open := func() (*netns.Namespace, error) { return netns.Open(path) }
	if r.Pod != nil {
		open = r.Pod.Clone
	}
	pod, err := open()
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetNS, oneLine(err), "")
	}
	inside, err := pod.Inode()
	outside, hostErr := host.Inode()
	if err = errors.Join(err, hostErr); err == nil && inside == outside {
		err = types.NewError(types.ErrInvalidNetNS,
			fmt.Sprintf("CNI_NETNS %s is the network namespace of the host", path), "")
	}
	if err != nil {
		_ = pod.Close()
		return nil, err
	}
	return pod, nil
}

// Layout names the layout of the datapath's maps: policies in another layout do not apply to this plugin's pods.
func Layout() string { return strconv.Itoa(objects.LayoutVersion) }

// Versions are the versions of the CNI specification that the plugin supports.
func Versions() []string { return []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} }

// codeNotAvailable is the code of a plugin that cannot serve ADD (CNI spec 1.1.0, STATUS). The library exports it since
// version 1.3.1, but that version's package invoke has dependencies that start slowly.
const codeNotAvailable = 50

// Failure is the result of a failed verb (CNI spec 1.1.0, section 5). The library's error type lacks the version.
type Failure struct {
	CNIVersion string `json:"cniVersion"`
	*types.Error
}

// WriteResult writes a result of ADD in a version of the specification.
func WriteResult(w io.Writer, result *types100.Result, version string) error {
	out, err := result.GetAsVersion(version)
	if err != nil {
		return err
	}
	return out.PrintTo(w)
}

// Coded converts an error to a one-line error with a code of the CNI specification.
func Coded(err error) *types.Error {
	var (
		coded       *types.Error
		full        *ipam.FullError
		tooOld      *objects.UnsupportedError
		unsupported *podlink.UnsupportedError
	)
	code, details := types.ErrInternal, ""
	switch {
	case errors.As(err, &coded):
		code, details = coded.Code, coded.Details
	case errors.As(err, &full), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		code = types.ErrTryAgainLater
	case errors.Is(err, objects.ErrNoBPFFS), errors.As(err, &tooOld), errors.As(err, &unsupported):
		code = codeNotAvailable
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EROFS), errors.Is(err, unix.EIO), errors.Is(err, unix.EDQUOT):
		code = types.ErrIOFailure
	}
	return types.NewError(code, oneLine(err), details)
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
