// SPDX-License-Identifier: Apache-2.0

// Package config is what "slipstream run" is told: kube-proxy's configuration
// (kubeproxy.config.k8s.io/v1alpha1), as kubeadm writes it, and a document of
// Slipstream's own settings (slipstream.config/v1alpha1), which may be beside it
// in the same file.
//
// A configuration is decoded, completed with defaults, and validated, in this
// order; each step is a function of its own, since flags come between the second
// and the third. Defaults and validation are kube-proxy's, as of Kubernetes 1.36,
// except where docs/configuration.md says otherwise: a file that kube-proxy takes
// is taken, and means the same. Errors name the field by its path in the file,
// all of them at once.
package config
