// SPDX-License-Identifier: Apache-2.0

// Package config is the configuration of "slipstream run": kube-proxy's configuration
// (kubeproxy.config.k8s.io/v1alpha1), as kubeadm writes it, and a second document with
// Slipstream's own settings (slipstream.config/v1alpha1), which may be in the same file.
//
// A configuration is decoded, completed with defaults, and validated, in this order. Each
// step is a separate function, since flags are applied between the second and the third.
// Defaults and validation are those of kube-proxy in Kubernetes 1.37, except where
// docs/configuration.md says otherwise: a file that kube-proxy accepts is accepted, and has
// the same meaning. All errors are returned at once, each with the field's path in the file.
package config
