// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
)

// mountBPF mounts the BPF file system where it belongs if what is to be pinned goes there and none is mounted, as in nodes that are
// containers, or have no systemd. In a container with a mount of the node that is propagated, the node gets it too.
func mountBPF(root string) error {
	standard := filepath.Dir(objects.DefaultRoot)
	var stat unix.Statfs_t
	if !strings.HasPrefix(root, standard+"/") || unix.Statfs(standard, &stat) != nil || stat.Type == unix.BPF_FS_MAGIC {
		return nil
	}
	if err := unix.Mount("bpf", standard, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mount the BPF file system at %s: %w", standard, err)
	}
	return nil
}
