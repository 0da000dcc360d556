// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

// errConfigChanged ends a proxy so that whoever started it starts it again.
var errConfigChanged = errors.New("--config: the file has changed: ending, to be started with the new one")

// watchConfig calls changed when a configuration file is written to or renamed, until
// ctx ends. As with kube-proxy, a file that is replaced as a whole is not noticed:
// that is how a ConfigMap changes in a pod, of which an administrator rolls out the
// DaemonSet again when it suits them.
func watchConfig(ctx context.Context, file string, changed context.CancelCauseFunc) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	if err := w.Add(file); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", file, err), w.Close())
	}
	go func() {
		defer w.Close()
		for {
			select {
			case <-ctx.Done():
				return
			case e := <-w.Events:
				if e.Has(fsnotify.Write) || e.Has(fsnotify.Rename) {
					changed(errConfigChanged)
					return
				}
			case err := <-w.Errors:
				klog.ErrorS(err, "Watching the configuration file")
			}
		}
	}()
	return nil
}
